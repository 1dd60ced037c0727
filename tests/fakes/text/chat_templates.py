"""Chat templates in the style of well-known models: every way in which they look at a conversation, and little else."""

#: Roles in angle brackets, tools as JSON in the system turn, thinking that can be switched off, calls in tags.
QWEN_STYLE = """
{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- if messages[0].role == 'system' %}{{- messages[0].content + '\\n\\n' }}{%- endif %}
    {{- '# Tools\\n<tools>' }}
    {%- for tool in tools %}{{- '\\n' }}{{- tool | tojson }}{%- endfor %}
    {{- '\\n</tools><|im_end|>\\n' }}
{%- elif messages[0].role == 'system' %}
    {{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}
{%- endif %}
{%- set ns = namespace(last_query=messages|length - 1) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if message.role == 'user' and message.content is string %}{%- set ns.last_query = index %}{%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- set content = message.content if message.content is string else '' %}
    {%- if message.role == 'user' or (message.role == 'system' and not loop.first) %}
        {{- '<|im_start|>' + message.role + '\\n' + content + '<|im_end|>\\n' }}
    {%- elif message.role == 'assistant' %}
        {{- '<|im_start|>assistant\\n' }}
        {%- if '</think>' in content %}{%- set content = content.split('</think>')[-1].lstrip('\\n') %}{%- endif %}
        {{- content }}
        {%- if message.tool_calls %}
            {%- for tool_call in message.tool_calls %}
                {%- if tool_call.function %}{%- set tool_call = tool_call.function %}{%- endif %}
                {{- '\\n<tool_call>\\n{"name": "' + tool_call.name + '", "arguments": ' }}
                {%- if tool_call.arguments is string %}{{- tool_call.arguments }}{%- else %}{{- tool_call.arguments | tojson }}{%- endif %}
                {{- '}\\n</tool_call>' }}
            {%- endfor %}
        {%- endif %}
        {{- '<|im_end|>\\n' }}
    {%- elif message.role == 'tool' %}
        {%- if loop.first or messages[loop.index0 - 1].role != 'tool' %}{{- '<|im_start|>user' }}{%- endif %}
        {{- '\\n<tool_response>\\n' + content + '\\n</tool_response>' }}
        {%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}{{- '<|im_end|>\\n' }}{%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}{{- '<think>\\n\\n</think>\\n\\n' }}{%- endif %}
{%- endif %}
"""

#: Begins with BOS, redefines `tools`, indents them, refuses several calls in one turn, knows a date.
LLAMA_STYLE = """
{{- bos_token }}
{%- if custom_tools is defined %}{%- set tools = custom_tools %}{%- endif %}
{%- if not date_string is defined %}{%- set date_string = '26 Jul 2024' %}{%- endif %}
{%- if not tools is defined %}{%- set tools = none %}{%- endif %}
{{- '<|start_header_id|>system<|end_header_id|>\\n\\nToday: ' + date_string + '\\n\\n' }}
{%- if tools is not none %}
    {%- for t in tools %}{{- t | tojson(indent=4) }}{{- '\\n\\n' }}{%- endfor %}
{%- endif %}
{{- '<|eot_id|>' }}
{%- for message in messages %}
    {%- if not (message.role == 'ipython' or message.role == 'tool' or 'tool_calls' in message) %}
        {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n'+ message['content'] | trim + '<|eot_id|>' }}
    {%- elif 'tool_calls' in message %}
        {%- if not message.tool_calls|length == 1 %}{{- raise_exception('only single tool-calls at once') }}{%- endif %}
        {%- set tool_call = message.tool_calls[0].function %}
        {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n{"name": "' + tool_call.name + '", "parameters": ' }}
        {{- tool_call.arguments | tojson }}
        {{- '}<|eot_id|>' }}
    {%- else %}
        {{- '<|start_header_id|>ipython<|end_header_id|>\\n\\n' }}
        {%- set is_many = message.content is mapping or message.content is iterable %}
        {{- message.content | tojson if is_many else message.content }}
        {{- '<|eot_id|>' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{%- endif %}
"""

#: Describes every parameter by a recursive macro, and names the tool that answered.
HERMES_STYLE = """
{%- macro describe(schema) %}
    {%- if schema.type == 'object' %}
        {{- '(' }}
        {%- for name, parameter in schema.properties | items %}
            {{- name + ': ' + describe(parameter) }}
            {%- if not loop.last %}{{- ', ' }}{%- endif %}
        {%- endfor %}
        {{- ')' }}
    {%- else %}{{- schema.type }}{%- endif %}
{%- endmacro %}
{{- bos_token + '<|im_start|>system\\n' }}
{%- for tool in tools %}
    {{- tool.function.name + describe(tool.function.parameters) + ' - ' + (tool.function.description or '') + '\\n' }}
{%- endfor %}
{{- '<|im_end|>\\n' }}
{%- for message in messages %}
    {%- if message.role == 'assistant' and message.tool_calls is defined %}
        {{- '<|im_start|>assistant' }}
        {%- for call in message.tool_calls %}{{- '\\n<tool_call>' + (call.function | tojson) + '</tool_call>' }}{%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- elif message.role == 'tool' %}
        {%- set answer = {'name': message.name, 'id': message.tool_call_id, 'content': message.content} %}
        {{- '<|im_start|>tool\\n' + answer | tojson + '<|im_end|>\\n' }}
    {%- else %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}
"""

#: Begins with BOS, and insists on user and assistant taking turns.
ALTERNATING = """
{{- bos_token }}
{%- for message in messages %}
    {%- if (message.role == 'user') != (loop.index0 % 2 == 0) %}
        {{- raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}
    {%- endif %}
    {{- '[' + message.role + ']' + message.content }}
{%- endfor %}
"""

#: Writes arguments as text, and calls only where there is no content at all.
DEEPSEEK_STYLE = """
{{- bos_token }}
{%- for message in messages %}
    {%- if message['role'] == 'user' %}{{- '<|User|>' + message['content'] }}{%- endif %}
    {%- if message['role'] == 'assistant' and message['content'] is none %}
        {{- '<|Assistant|><|calls|>' }}
        {%- for tool in message['tool_calls'] %}
            {{- tool['type'] + '<|sep|>' + tool['function']['name'] + '\\n```json\\n' + tool['function']['arguments'] + '\\n```' }}
        {%- endfor %}
        {{- '<|end|>' }}
    {%- endif %}
    {%- if message['role'] == 'assistant' and message['content'] is not none %}
        {{- '<|Assistant|>' + message['content'].split('</think>')[-1] + '<|end|>' }}
    {%- endif %}
    {%- if message['role'] == 'tool' %}{{- '<|output|>' + message['content'] }}{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|Assistant|><think>\\n' }}{%- endif %}
"""

#: Needs a content, as Qwen3's own template does.
STRICT_QWEN_STYLE = QWEN_STYLE.replace("message.content if message.content is string else ''", "message.content + ''")

#: Looks for text in the parts of a content only.
TYPED = """
{%- for message in messages %}
    {{- '<' + message.role + '>' }}
    {%- for part in message.content %}{%- if part.type == 'text' %}{{- part.text | trim }}{%- endif %}{%- endfor %}
{%- endfor %}
"""

#: Keeps what was thought, and takes documents.
THINKING = """
{%- for document in documents or [] %}{{- '[' + document.title + ': ' + document.text + ']' }}{%- endfor %}
{%- for message in messages %}
    {{- '<|im_start|>' + message.role + '\\n' }}
    {%- if message.reasoning_content is string %}{{- '<think>\\n' + message.reasoning_content + '\\n</think>\\n\\n' }}{%- endif %}
    {{- message.content + '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}
"""
