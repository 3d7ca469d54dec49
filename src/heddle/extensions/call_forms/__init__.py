"""Call forms of families whose calls are not Hermes'."""

from heddle.doors import Extension

_FORMS = (
    "apertus",
    "cohere",
    "deepseek",
    "dsml",
    "ernie",
    "functionary",
    "gemma4",
    "glm",
    "granite",
    "harmony",
    "hunyuan",
    "json_list",
    "kimi",
    "kimi_k3",
    "lfm2",
    "llama",
    "minicpm5",
    "minimax",
    "minimax_m3",
    "mistral",
    "olmo3",
    "phi4_mini",
    "seed_oss",
    "smollm3",
    "solar_open",
    "solar_open2",
    "xml_function",
)
"""The modules with a form, in the order in which their `form_of` are asked."""

EXTENSION = Extension(
    call_forms=[f"heddle.extensions.call_forms.{form}:form_of" for form in _FORMS]
)
