"""Import and export of Hugging Face folders, seen by transformers: every tensor comes back bit for bit, and both folders have the same logits.

usage: transformers_round_trip.py BRIDGE FOLDER...
Needs a Python with torch, transformers and safetensors; `cargo xtask test` runs it with the one that BRIDGE_PYTHON names.
"""
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
import transformers
from safetensors.torch import load_file


def tensors(folder):
    return {name: value for path in sorted(folder.glob("model*.safetensors")) for name, value in load_file(path).items()}


def logits(folder, ids):
    config = transformers.AutoConfig.from_pretrained(folder)
    kind = transformers.AutoModelForSeq2SeqLM if config.is_encoder_decoder else transformers.AutoModelForCausalLM
    if "text_config" in config.to_dict():
        kind = transformers.AutoModelForImageTextToText
    model = kind.from_pretrained(folder, attn_implementation="eager", dtype=torch.float32).eval()
    more = {"decoder_input_ids": ids} if config.is_encoder_decoder else {}
    with torch.no_grad():
        return model(input_ids=ids, **more).logits


def check(bridge, source):
    with tempfile.TemporaryDirectory() as scratch:
        checkpoint, exported = Path(scratch) / "checkpoint", Path(scratch) / "exported"
        for arguments in (["import", source, checkpoint], ["export", checkpoint, exported, "--max-shard-size", "200KB"]):
            subprocess.run([bridge, "convert", *map(str, arguments)], check=True, stdout=subprocess.DEVNULL)
        before, after = tensors(source), tensors(exported)
        assert before.keys() == after.keys(), before.keys() ^ after.keys()
        wrong = [name for name, value in before.items() if value.shape != after[name].shape or not torch.equal(value.float(), after[name])]
        assert not wrong, wrong
        ids = torch.arange(2, 34).remainder(150).reshape(2, 16)
        assert torch.equal(logits(source, ids), logits(exported, ids)), "other logits"


failed = False
for name in sys.argv[2:]:
    try:
        check(sys.argv[1], Path(name))
        print(f"{name}: the same")
    except Exception as error:  # All folders are looked at.
        failed = True
        print(f"{name}: {type(error).__name__}: {error}")
sys.exit(failed)
