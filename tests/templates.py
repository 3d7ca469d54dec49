"""Short chat templates that show what the real ones of each family show."""

CHATML = """\
{%- for message in messages -%}
<|im_start|>{{ message.role }}
{{ message.content }}<|im_end|>
{% endfor -%}
{%- if add_generation_prompt -%}
<|im_start|>assistant
{% endif -%}
"""

HERMES = """\
{%- if tools -%}
<|im_start|>system
Call as <tool_call>{"name": ..., "arguments": ...}</tool_call>.
{%- for tool in tools %}

{{ tool | tojson }}
{%- endfor %}<|im_end|>
{% endif -%}
{%- for message in messages -%}
<|im_start|>{{ message.role }}
{{ message.content }}
{%- for call in message.tool_calls or [] %}
<tool_call>
{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}
</tool_call>
{%- endfor %}<|im_end|>
{% endfor -%}
{%- if add_generation_prompt -%}
<|im_start|>assistant
{% endif -%}
"""

QWEN3 = (
    HERMES
    + """\
{%- if add_generation_prompt and enable_thinking is defined and not enable_thinking -%}
<think>

</think>

{% endif -%}
"""
)

THINKING = CHATML.replace("assistant\n", "assistant\n<think>\n") + "{# ends with </think> #}"

LLAMA = """\
{%- if tools -%}
<|start_header_id|>system<|end_header_id|>
Answer with {"name": function name, "parameters": arguments}, {"type": "object", "parameters": {}}.
{%- for tool in tools %}

{{ tool | tojson }}
{%- endfor %}<|eot_id|>
{%- endif -%}
{%- for message in messages -%}
<|start_header_id|>{{ message.role }}<|end_header_id|>
{%- if 'tool_calls' in message %}
{%- if message.tool_calls | length != 1 %}{{ raise_exception("only single calls") }}{% endif %}
{%- set call = message.tool_calls[0].function %}
{"name": "{{ call.name }}", "parameters": {{ call.arguments | tojson }}}
{%- else %}
{{ message.content }}
{%- endif %}<|eot_id|>
{%- endfor -%}
{%- if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>
{% endif -%}
"""

MISTRAL = """\
{%- for message in messages -%}
{%- if message.role == "user" %}[AVAILABLE_TOOLS]{{ tools | tojson }}[/AVAILABLE_TOOLS][INST]
{{- message.content }}[/INST]
{%- elif message.tool_calls -%}
[TOOL_CALLS][
{%- for call in message.tool_calls %}
{%- if call.id | length != 9 %}{{ raise_exception("ids have nine characters") }}{% endif %}
{{- call.function | tojson }},{{ call.id }}
{%- endfor %}]
{%- elif message.role == "tool" -%}
{%- if message.tool_call_id | length != 9 %}{{ raise_exception("nine characters") }}{% endif -%}
[TOOL_RESULTS]{{ message.tool_call_id }}:{{ message.content }}[/TOOL_RESULTS]
{%- else %}{{ message.content }}{% endif %}
{%- endfor -%}
"""

MISTRAL_NAMED = MISTRAL.replace("[TOOL_CALLS][", "[TOOL_CALLS]name[ARGS][")

HARMONY = """\
{%- set last = namespace(name=none) -%}
<|start|>system<|message|>Reasoning: {{ reasoning_effort | default("medium") }}<|end|>
{%- set told = messages[0].content if messages[0].role in ("system", "developer") else "" -%}
<|start|>developer<|message|>{{ told }}
{%- for tool in tools or [] %}
{{ tool | tojson }}
{%- endfor %}<|end|>
{%- for message in messages -%}
{%- if message.role == "user" -%}
<|start|>user<|message|>{{ message.content }}<|end|>
{%- elif message.role == "tool" -%}
{%- if last.name is none %}{{ raise_exception("a result without a call") }}{% endif -%}
<|start|>functions.{{ last.name }} to=assistant<|channel|>commentary<|message|>
{{- message.content | tojson }}<|end|>
{%- elif message.role == "assistant" and message.tool_calls -%}
{%- if message.content and message.thinking %}{{ raise_exception("both") }}{% endif %}
{%- if message.content or message.thinking -%}
<|start|>assistant<|channel|>analysis<|message|>{{ message.content or message.thinking }}<|end|>
{%- endif %}
{%- set call = message.tool_calls[0].function %}
{%- set last.name = call.name -%}
<|start|>assistant to=functions.{{ call.name }}<|channel|>commentary json<|message|>
{{- call.arguments | tojson }}<|call|>
{%- elif message.role == "assistant" -%}
<|start|>assistant<|channel|>final<|message|>{{ message.content }}<|end|>
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt %}<|start|>assistant{% endif -%}
"""
