"""What Kubernetes puts into the environment of a pod."""

from __future__ import annotations


def service_variables(service: str, port_name: str, port: int) -> dict[str, str]:
    """The variables of a Service with one named port, as every pod of its namespace gets them (`enableServiceLinks`, on by default)."""
    name, address = service.replace("-", "_").upper(), "10.96.0.7"
    url = f"tcp://{address}:{port}"
    return {
        f"{name}_SERVICE_HOST": address,
        f"{name}_SERVICE_PORT": str(port),
        f"{name}_SERVICE_PORT_{port_name.replace('-', '_').upper()}": str(port),
        f"{name}_PORT": url,
        f"{name}_PORT_{port}_TCP": url,
        f"{name}_PORT_{port}_TCP_PROTO": "tcp",
        f"{name}_PORT_{port}_TCP_PORT": str(port),
        f"{name}_PORT_{port}_TCP_ADDR": address,
    }
