# opencode as an agent: npm install --global opencode-ai@1.18.33. It ignores OPENAI_BASE_URL, so this writes its config,
# which also turns off the title that it asks for besides: that would be a training row of its own.
set -e
cd "$(dirname "$AGL_TASK_FILE")"
export HOME="$PWD" OPENCODE_DISABLE_AUTOUPDATE=true
cat >opencode.json <<END
{
  "model": "agl/$AGL_MODEL",
  "agent": {"title": {"disable": true}},
  "provider": {
    "agl": {
      "npm": "@ai-sdk/openai-compatible",
      "options": {"baseURL": "$OPENAI_BASE_URL", "apiKey": "$OPENAI_API_KEY"},
      "models": {"$AGL_MODEL": {}}
    }
  }
}
END
opencode run "$AGL_PROMPT" </dev/null >&2
[ "$(cat answer.txt)" = "$ANSWER" ] && echo 1 || echo 0
