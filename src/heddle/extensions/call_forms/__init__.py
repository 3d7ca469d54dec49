"""Call forms of families whose calls are neither Hermes', Llama's, Mistral's nor harmony."""

from heddle.doors import Extension

_HERE = "heddle.extensions.call_forms"

EXTENSION = Extension(call_forms=(f"{_HERE}.xml_function:form_of",))
