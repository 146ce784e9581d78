"""The page at /docs: shows /openapi.json, needs nothing from elsewhere."""

DOCS_PAGE = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Shoal: HTTP API</title>
<style>
  body { font: 15px/1.5 system-ui, sans-serif; max-width: 62rem; margin: 2rem auto; padding: 0 1rem; }
  code { font: 13px/1.5 ui-monospace, monospace; }
  details { border-bottom: 1px solid #8884; padding: .4rem 0; }
  summary { cursor: pointer; }
  summary b { display: inline-block; width: 4rem; text-transform: uppercase; }
  table { border-collapse: collapse; width: 100%; margin: .5rem 0 1rem; }
  td { border-top: 1px solid #8883; padding: .2rem .5rem .2rem 0; vertical-align: top; }
  td:first-child { white-space: nowrap; }
</style>
<h1>Shoal: HTTP API</h1>
<p>Made from <a href="openapi.json">openapi.json</a>. Fields marked * are required.</p>
<main></main>
<script>
"use strict";
const make = (tag, text, ...children) => {
  const element = document.createElement(tag);
  if (text) element.textContent = text;
  element.append(...children);
  return element;
};
const nameOf = (ref) => ref.split("/").pop();
const typeOf = (schema) => {
  if (schema.$ref) return nameOf(schema.$ref);
  if (schema.anyOf) return schema.anyOf.map(typeOf).join(" or ");
  if (schema.enum) return schema.enum.map((value) => JSON.stringify(value)).join(" or ");
  const type = schema.type === "array" ? "array of " + typeOf(schema.items ?? {}) : schema.type ?? "anything";
  if (schema.maximum === undefined) return type;
  return `${type}, ${schema.minimum ?? "above " + schema.exclusiveMinimum} to ${schema.maximum}`;
};
const table = (schema) => {
  const rows = Object.entries(schema.properties ?? {}).map(([name, field]) => make("tr", "",
    make("td", "", make("code", name + ((schema.required ?? []).includes(name) ? " *" : ""))),
    make("td", "", make("code", typeOf(field))),
    make("td", field.description ?? ("default" in field ? "default " + JSON.stringify(field.default) : ""))));
  return make("table", "", ...rows);
};
const operation = (path, method, described, schemas) => {
  const box = make("details", "", make("summary", "", make("b", method), make("code", path), " " + described.summary));
  const show = (title, content) => {
    for (const { schema } of Object.values(content ?? {}).filter((each) => each.schema))
      for (const each of schema.anyOf ?? [schema])
        box.append(make("h3", `${title}: ${nameOf(each.$ref)}`), table(schemas[nameOf(each.$ref)]));
  };
  show("Body", described.requestBody?.content);
  show("Answer", described.responses["200"].content);
  return box;
};
fetch("openapi.json").then((answer) => answer.json()).then((api) => {
  const main = document.querySelector("main");
  for (const [path, methods] of Object.entries(api.paths))
    for (const [method, described] of Object.entries(methods))
      main.append(operation(path, method, described, api.components.schemas));
  main.append(make("h2", "Types"));
  for (const [name, schema] of Object.entries(api.components.schemas))
    main.append(make("h3", name), make("p", schema.description ?? ""), table(schema));
});
</script>
</html>
"""
