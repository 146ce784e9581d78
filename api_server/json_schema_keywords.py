"""Which keywords of JSON Schema can be enforced (draft 2020-12, and what older drafts and OpenAPI call otherwise).

The grammar back end passes over some keywords without a word, and reads others in its own way: found out with the
JSON Schema Test Suite. What constrains and is in none of these tables is refused; what is in no draft constrains
nothing (JSON Schema Core, section 6.5) and is left out.
"""

ANNOTATIONS = frozenset(
    (
        "$comment",
        "$id",
        "$schema",
        "$vocabulary",
        "contentEncoding",
        "contentMediaType",
        "contentSchema",
        "default",
        "definitions",
        "$defs",
        "deprecated",
        "description",
        "example",
        "examples",
        "nullable",
        "readOnly",
        "title",
        "writeOnly",
        "discriminator",
    )
)
"""They say something about a value and exclude none. (`nullable` of OpenAPI 3.0 only adds a value.)"""

BY_TYPE: dict[str, frozenset[str]] = {
    "string": frozenset(("minLength", "maxLength", "pattern", "format")),
    "number": frozenset(("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")),
    "array": frozenset(("items", "prefixItems", "minItems", "maxItems", "uniqueItems")),
    "object": frozenset(("properties", "required", "additionalProperties", "minProperties", "maxProperties")),
}
"""Enforced, for values of one type; values of other types are free of them."""
BY_TYPE["integer"] = BY_TYPE["number"]

ALTERNATIVES = ("anyOf", "oneOf", "allOf")
STRUCTURAL = frozenset(("type", "enum", "const", "$ref", *ALTERNATIVES))

REFUSED = frozenset(
    (
        "$anchor",
        "$dynamicAnchor",
        "$dynamicRef",
        "$recursiveAnchor",
        "$recursiveRef",
        "additionalItems",
        "contains",
        "dependencies",
        "dependentRequired",
        "dependentSchemas",
        "else",
        "if",
        "maxContains",
        "minContains",
        "not",
        "patternProperties",
        "propertyNames",
        "then",
        "unevaluatedItems",
        "unevaluatedProperties",
    )
)
"""Constraints that cannot be enforced."""

TYPES = ("null", "boolean", "integer", "number", "string", "array", "object")
FORMATS = frozenset(("date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid"))
"""Those that OpenAI documents; others are annotations, as the draft has it for all."""
