// The sources are with the engine, which serves them to pages; a package has a copy, made when it is packed.
import { copyFileSync, cpSync, rmSync } from "node:fs";
import { fileURLToPath } from "node:url";

const at = (path) => fileURLToPath(new URL(path, import.meta.url));
rmSync(at("lib"), { recursive: true, force: true });
cpSync(at("../../engine/http/static/client"), at("lib"), { recursive: true });
copyFileSync(at("../../LICENSE"), at("LICENSE"));
