"""vLLM's server on the CPU, asked over HTTP as its users do: PYTHON benchmarks/engines/run_vllm_server.py MODEL PORT"""

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Sequence

import aiohttp
from answering import answer

_model, _port = sys.argv[1:]
_url = f"http://127.0.0.1:{_port}"
_flags = ["--dtype", "bfloat16", "--no-enable-prefix-caching", "--max-model-len", "2048", "--host", "127.0.0.1", "--port", _port]
_command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", _model, *_flags]
_server = subprocess.Popen(_command, stdout=subprocess.DEVNULL, env=os.environ | {"VLLM_CPU_KVCACHE_SPACE": "4"})


async def _wait_until_healthy() -> None:
    async with aiohttp.ClientSession() as session:
        while _server.poll() is None:
            try:
                async with session.get(f"{_url}/health") as response:
                    if response.status == 200:
                        return
            except aiohttp.ClientError:
                pass
            time.sleep(0.5)
    raise RuntimeError("the server died")


async def _complete(session: aiohttp.ClientSession, prompt: list[int], max_tokens: int) -> None:
    lengths = {"max_tokens": max_tokens, "min_tokens": max_tokens, "ignore_eos": True}
    body = {"model": _model, "prompt": prompt, "temperature": 0.0, "stream": True, **lengths}
    async with session.post(f"{_url}/v1/completions", json=body) as response:
        response.raise_for_status()
        async for _ in response.content:
            pass


async def _complete_all(prompts: Sequence[list[int]], max_tokens: int) -> None:
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout()) as session:
        await asyncio.gather(*(_complete(session, prompt, max_tokens) for prompt in prompts))


asyncio.run(_wait_until_healthy())
answer(lambda prompts, max_tokens: asyncio.run(_complete_all(prompts, max_tokens)), vocab_size=32_000)
