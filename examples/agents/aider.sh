# aider as an agent: pip install aider-chat==0.86.2, in an environment of its own. It ends with 0 even when a call has
# failed, and then says so in a line that begins with `litellm.`
set -e
cd "$(dirname "$AGL_TASK_FILE")"
aider --model "openai/$AGL_MODEL" --message "$AGL_PROMPT" --edit-format diff --yes-always --no-git --no-pretty \
    --no-check-update --no-show-release-notes --no-show-model-warnings --analytics-disable answer.txt \
    </dev/null >aider.log 2>&1
cat aider.log >&2
if grep -q '^litellm\.' aider.log; then exit 1; fi
[ "$(cat answer.txt)" = "$ANSWER" ] && echo 1 || echo 0
