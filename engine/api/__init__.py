"""The endpoints of the HTTP interface, one module per resource."""
