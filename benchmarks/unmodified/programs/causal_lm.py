"""A small causal LM by Hugging Face's Trainer; with `lora`, an adapter of peft's alone learns."""

import sys

import torch
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

config = LlamaConfig(
    vocab_size=256,
    hidden_size=64,
    intermediate_size=128,
    num_hidden_layers=2,
    num_attention_heads=4,
)
model = LlamaForCausalLM(config)
if "lora" in sys.argv:
    from peft import LoraConfig, get_peft_model

    lora = LoraConfig(r=8, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")
    model = get_peft_model(model, lora)

tokens = torch.randint(256, (64, 32), generator=torch.Generator().manual_seed(3))
arguments = TrainingArguments(
    output_dir="out",
    max_steps=6,
    per_device_train_batch_size=4,
    logging_steps=1,
    save_strategy="no",
    report_to="none",
)
trainer = Trainer(
    model=model,
    args=arguments,
    train_dataset=[{"input_ids": row, "labels": row} for row in tokens],
)
trainer.train()
