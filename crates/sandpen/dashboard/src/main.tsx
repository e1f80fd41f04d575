import { render } from "preact";
import { App } from "./app.tsx";
import "./style.css";
import { restore } from "./theme.ts";

restore();
render(<App />, document.getElementById("app")!);
