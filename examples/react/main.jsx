/** The page of the example: `index.html?engine=http://127.0.0.1:8000#token=...`, with what `engine token USER` prints. */

import { createRoot } from "react-dom/client";
import App from "./App.jsx";

const url = new URLSearchParams(location.search).get("engine") ?? location.origin;
const token = new URLSearchParams(location.hash.slice(1)).get("token") ?? "";
createRoot(document.getElementById("root")).render(<App url={url} getToken={() => token} />);
