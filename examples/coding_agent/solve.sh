# One rollout: the agent works in the attempt's own folder, and what it left there is checked.
set -e
example=$PWD
cd "$(dirname "$AGL_TASK_FILE")"
FIREWORKS_API_KEY=$OPENAI_API_KEY smolagent "$AGL_PROMPT" --model-type OpenAIModel --model-id "$AGL_MODEL" \
    --api-base "$OPENAI_BASE_URL" --tools --imports pathlib </dev/null >&2
python "$example/check_solution.py" "$FUNCTION"
