# mini-swe-agent as an agent: pip install mini-swe-agent==2.4.6 mcp, in an environment of its own. The versions of
# LiteLLM that it takes need `mcp` for tools, and do not ask for it. Without a limit it repeats a refused call for minutes.
set -e
cd "$(dirname "$AGL_TASK_FILE")"
export MSWEA_CONFIGURED=true MSWEA_GLOBAL_CONFIG_DIR="$PWD/.mini" MSWEA_COST_TRACKING=ignore_errors
export LITELLM_LOCAL_MODEL_COST_MAP=True MSWEA_MODEL_RETRY_STOP_AFTER_ATTEMPT=3
mini --model "openai/$AGL_MODEL" --task "$AGL_PROMPT" --yolo --exit-immediately --cost-limit 0 \
    --output trajectory.json </dev/null >&2
[ "$(cat answer.txt)" = "$ANSWER" ] && echo 1 || echo 0
