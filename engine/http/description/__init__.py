"""The description of the HTTP interface in OpenAPI, a module for each part of it."""
