/** The browser client at its public address, for pages that import it from the engine. */

export * from "./client/index.js";
