#!/usr/bin/python3
"""Validates envelopes against docs/envelope.schema.json (JSON Schema 2020-12).

  validate.py SCHEMA < LINES      each line is a JSON string that holds an envelope

Prints one line for each envelope that is not valid, or that has a member the schema does not
name, and at last how many were read. Then it breaks valid envelopes in every way that the
schema is to notice, and prints those it does not.
"""
import copy
import json
import sys

from jsonschema import Draft202012Validator


def unnamed(envelope, schema):
    """Members that the schema's properties do not have, as paths; not of the payload."""
    paths = [name for name in envelope if name not in schema["properties"]]
    for part in ("header", "body"):
        named = schema["properties"][part]["properties"]
        paths += [f"{part}.{name}" for name in envelope[part] if name not in named]
    return paths


def breakages(envelope, schema):
    """(what, broken envelope) for each rule."""
    for part in ("header", "body"):
        for name in schema["properties"][part]["required"]:
            broken = copy.deepcopy(envelope)
            del broken[part][name]
            yield f"without {part}.{name}", broken
        broken = copy.deepcopy(envelope)
        del broken[part]
        yield f"without {part}", broken
    for path, value in (
            ("header.eventId", "not a uuid"), ("header.eventId", envelope["header"]["eventId"].upper() + "x"),
            ("header.traceId", ""), ("header.traceId", None), ("header.version", "2.0.0"),
            ("header.schemaVersion", "1.0"), ("header.schemaVersion", "1.0.0-"),
            ("header.origin", ""), ("header.timestamp", "2026-01-01T00:00:00Z"),
            ("header.timestamp", "2026-01-01 00:00:00.000000"), ("header.locale", ""),
            ("body.aggregate", ""), ("body.aggregate", 1), ("body.eventName", "orderPlaced"),
            ("body.eventName", "order placed"), ("body.eventType", "event")):
        part, name = path.split(".")
        broken = copy.deepcopy(envelope)
        broken[part][name] = value
        yield f"{path} = {value!r}", broken


def main():
    with open(sys.argv[1], encoding="utf-8") as file:
        schema = json.load(file)
    Draft202012Validator.check_schema(schema)
    validator = Draft202012Validator(schema)
    envelopes = [json.loads(json.loads(line)) for line in sys.stdin]
    for number, envelope in enumerate(envelopes):
        for error in validator.iter_errors(envelope):
            print(f"envelope {number}: {error.json_path}: {error.message}")
        for path in unnamed(envelope, schema):
            print(f"envelope {number}: the schema does not name {path}")
    print(f"read {len(envelopes)}")

    extended = copy.deepcopy(envelopes[0])
    extended["more"] = extended["header"]["more"] = extended["body"]["more"] = {"a": [1]}
    if not validator.is_valid(extended):
        print("unknown members are not ignored")
    noticed = 0
    for what, broken in breakages(envelopes[0], schema):
        if validator.is_valid(broken):
            print(f"not noticed: {what}")
        else:
            noticed += 1
    print(f"noticed {noticed}")


main()
