# Qwen Code as an agent: npm install --global @qwen-code/qwen-code@0.15.10.
set -e
cd "$(dirname "$AGL_TASK_FILE")"
export HOME="$PWD" OPENAI_MODEL="$AGL_MODEL"
qwen --auth-type openai --yolo --prompt "$AGL_PROMPT" </dev/null >&2
[ "$(cat answer.txt)" = "$ANSWER" ] && echo 1 || echo 0
