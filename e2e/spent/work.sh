#!/bin/sh
# Does one item in three steps. Each is a question to the model, for which the model reports 25,000 tokens.
set -u
question='{"model": "scripted-large--input-25000", "max_tokens": 300, "messages": [{"role": "user", "content": "the next step"}]}'
for step in 1 2 3; do
    # It repeats a refused question, because more tokens may be granted.
    until wget -q -Y off -O /dev/null --header 'content-type: application/json' --post-data "$question" "$OPENAI_BASE_URL/chat/completions"; do
        sleep 1
    done
    echo "$step" >> "$HOME/done"
    spillway progress --percent $((step * 33)) "step $step of 3 is done"
done
echo "steps done: $(tr '\n' ' ' < "$HOME/done")" > "$SPILLWAY_RESULT_FILE"
