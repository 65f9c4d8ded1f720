# Claude Code as an agent: npm install --global @anthropic-ai/claude-code@2.1.197; it needs no account.
# --bare leaves out your own settings, hooks and memory; the last variable, a line for billing in its instructions.
set -e
cd "$(dirname "$AGL_TASK_FILE")"
export CLAUDE_CONFIG_DIR="$PWD/.claude" CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC=1 CLAUDE_CODE_ATTRIBUTION_HEADER=0
claude --bare --print "$AGL_PROMPT" --model "$AGL_MODEL" --allowedTools Bash,Edit,Read </dev/null >&2
[ "$(cat answer.txt)" = "$ANSWER" ] && echo 1 || echo 0
