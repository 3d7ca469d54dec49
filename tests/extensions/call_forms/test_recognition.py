"""Which form a template shows. What two forms share decides nothing."""

from __future__ import annotations

import pytest

from heddle.extensions.call_forms.apertus import Apertus
from heddle.extensions.call_forms.cohere import Cohere
from heddle.extensions.call_forms.deepseek import DeepSeek
from heddle.extensions.call_forms.dsml import Dsml, DsmlV4
from heddle.extensions.call_forms.ernie import Ernie
from heddle.extensions.call_forms.functionary import Functionary, FunctionTags
from heddle.extensions.call_forms.gemma4 import Gemma4
from heddle.extensions.call_forms.glm import Glm
from heddle.extensions.call_forms.granite import Granite, Granite32, Granite33
from heddle.extensions.call_forms.hunyuan import Hunyuan, HunyuanOpen
from heddle.extensions.call_forms.json_list import Nemotron, ToolCalls
from heddle.extensions.call_forms.kimi import Kimi
from heddle.extensions.call_forms.kimi_k3 import KimiK3
from heddle.extensions.call_forms.lfm2 import Lfm2
from heddle.extensions.call_forms.llama import Llama4, LlamaPython
from heddle.extensions.call_forms.minicpm5 import MiniCpm5
from heddle.extensions.call_forms.minimax import MiniMax
from heddle.extensions.call_forms.minimax_m3 import MiniMaxM3
from heddle.extensions.call_forms.mistral import Mistral
from heddle.extensions.call_forms.olmo3 import Olmo3
from heddle.extensions.call_forms.phi4_mini import Phi4Mini
from heddle.extensions.call_forms.seed_oss import SeedOss
from heddle.extensions.call_forms.smollm3 import SmolLM3
from heddle.extensions.call_forms.solar_open import SolarOpen
from heddle.extensions.call_forms.solar_open2 import SolarOpen2
from heddle.extensions.call_forms.xml_function import XmlFunction
from heddle.text.chat.call_forms import HERMES, CallForm
from heddle.text.chat.template import ChatTemplate

XML = "<function=f><parameter=k>v</parameter></function>"
GLM = "<tool_call>f<arg_key>k</arg_key><arg_value>v</arg_value></tool_call>"
DEEPSEEK = "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>"

DSML = "{% set token = '｜DSML｜' %}<{{ token }}invoke name=\"f\">"


@pytest.mark.parametrize(
    ("shown", "form"),
    [
        (f"<tool_call>{XML}</tool_call>", XmlFunction()),
        (f"<seed:tool_call>{XML}</seed:tool_call>", SeedOss()),
        ('<minimax:tool_call><invoke name="f"><parameter name="k">v', MiniMax()),
        (GLM, Glm()),
        (GLM.replace("<tool_call>f", "<tool_call>f<tool_sep>"), Hunyuan()),
        ("{% set s = ':opensource' %}<tool_call{}><tool_sep{}><arg_key{}>", HunyuanOpen()),
        ("<|START_ACTION|>[", Cohere()),
        ("<|tools_prefix|>{{ f.arguments|tojson }}<|tools_suffix|>", Apertus()),
        ("<|tools_prefix|>{{ f.arguments }}<|tools_suffix|>", Apertus(takes_texts=True)),
        ("<|tool_calls_section_begin|><|tool_call_argument_begin|>", Kimi()),
        (DEEPSEEK + "```json", DeepSeek(fences=True, joins=False)),
        ("content + '" + DEEPSEEK + "```json", DeepSeek(fences=True)),
        (DSML + "<{{ token }}function_calls>", Dsml()),
        ("<|tool_call>call:{{ tool_call_id }}", Gemma4()),
        ("<|tool_call>call:{{ tool_responses }}", Gemma4(knows_results=False)),
        (DSML + "<{{ token }}tool_calls>", DsmlV4()),
        (DSML.replace("｜DSML｜", ""), None),
        ("<TOOLCALL>[", Nemotron()),
        ("in <tool_call></tool_call> tags: <tool_calls>[", ToolCalls()),
        ("<tool_calls>", None),
        ("<|tool_call|>", Granite()),
        ("<|tool_call|>[]<|/tool_call|>", None),
        ("<|tool_call_start|>{{ call.tool_calls }}", Lfm2()),
        ("<|tool_list_start|>", Lfm2(knows_calls=False)),
        ("List of tools: [", Lfm2(knows_calls=False)),
        ("<|header_start|> as [func_name1(", LlamaPython()),
        ("<|start_header_id|> as [func_name1(", LlamaPython()),
        ("[func_name1( {{ '%s' | format(1) }}", LlamaPython(quotes=False)),
        ("[func_name1( {{ '=\"' + '%s' | format(1) }}", LlamaPython()),
        ('<|header_start|> as {"name": f, "parameters": x}', Llama4()),
        ("<|header_start|>", None),
        ("[TOOL_CALLS][", Mistral()),
        ("[TOOL_CALLS]name[ARGS][", Mistral(named=True)),
        ("[TOOL_CALLS][CALL_ID][ARGS]", Mistral(named=True, ids=True)),
        ("[TOOL_CALLS] cannot have both content and tool calls", Mistral(words=False)),
        ('<function=example_function_name>{"a": 1}', FunctionTags()),
        ('<function name="f"><param name="p">', MiniCpm5()),
        ("<|tool_call:start|><|tool_arg:start|>", SolarOpen2()),
        ("<function_calls>", Olmo3()),
        ("<|tool|><|/tool|>", Phi4Mini()),
        ("<|tool_call|>f<|/tool_call|><|tool|><|/tool|>", Phi4Mini()),
        ("functools[{", Phi4Mini(word=True)),
        ("import functools", None),
        ("<function_calls><invoke name=", None),
        (XML, None),
        (']<]minimax[>[<tool_call>]<]minimax[>[<invoke name="f">', MiniMaxM3()),
        ("tools", None),
    ],
)
def test_a_template_shows_its_form(shown: str, form: object) -> None:
    dialect = ChatTemplate("{{ tools }}{{ messages }}" + shown, "", "").dialect
    assert (dialect.form, dialect.knows_tools) == (form or HERMES, form is not None)
    without = ChatTemplate("{{ messages }}" + shown, "", "").dialect
    assert (without.form, without.knows_tools) == (HERMES, False)


def test_the_template_of_deepseek_v3_1_may_take_no_functions() -> None:
    dialect = ChatTemplate("{{ tools }}{{ messages }}" + DEEPSEEK, "", "").dialect
    assert (dialect.form, dialect.knows_tools) == (DeepSeek(), True)
    dialect = ChatTemplate("{{ messages }}" + DEEPSEEK, "", "").dialect
    assert (dialect.form, dialect.knows_tools) == (DeepSeek(describes_tools=True), True)
    fences = ChatTemplate("{{ messages }}```json" + DEEPSEEK, "", "").dialect
    assert (fences.form, fences.knows_tools) == (HERMES, False), "nor were the distilled trained"


def test_a_template_may_take_functions_under_another_name() -> None:
    smollm3 = ChatTemplate("{{ xml_tools }}{{ messages }}<tool_call>", "", "").dialect
    assert (smollm3.form, smollm3.knows_tools) == (SmolLM3(), True)
    phi = ChatTemplate("{{ messages[0]['tools'] }}<|/tool|>{{ message['tools'] }}", "", "").dialect
    assert (phi.form, phi.knows_tools) == (Phi4Mini(in_message=True), True)


@pytest.mark.parametrize(
    ("shown", "form"),
    [
        (">>>all", Functionary()),
        ("<|tool_call|>[] Here is my thought process: Here is my response:", Granite32()),
        ("<|tool_call|>[] <think></think><response></response>", Granite33()),
        ("</think><response><tool_call>", Ernie()),
        ("<|begin|>assistant<|tool_call:begin|><|tool_call:args|>", SolarOpen()),
        ("<|open|><|close|><|sep|><|end_of_msg|>", KimiK3()),
    ],
)
def test_a_form_of_whole_answers_needs_no_functions(shown: str, form: CallForm) -> None:
    dialect = ChatTemplate("{{ messages }}" + shown, "", "").dialect
    assert (dialect.form, dialect.knows_tools, dialect.marks) == (form, True, form.reasoning)
