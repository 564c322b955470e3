"""A conversation with a gateway, for a pod that has the `openai` package: URL, key and number of turns."""

import json
import sys

import openai

url, key, turns = sys.argv[1:]
client = openai.OpenAI(base_url=url, api_key=key, max_retries=10, timeout=120)
messages = []
for turn in range(int(turns)):
    messages.append({"role": "user", "content": f"What is {turn}?"})
    completion = client.chat.completions.create(model="policy", messages=messages, max_tokens=24)
    messages.append({"role": "assistant", "content": completion.choices[0].message.content})
print(json.dumps([message["content"] for message in messages if message["role"] == "assistant"]))
