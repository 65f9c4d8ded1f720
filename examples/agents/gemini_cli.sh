# gemini-cli as an agent: npm install --global @google/gemini-cli@0.61.0. It reads GOOGLE_GEMINI_BASE_URL and
# GEMINI_API_KEY; without its settings it refuses a base URL where no person is there.
set -e
cd "$(dirname "$AGL_TASK_FILE")"
export HOME="$PWD" GEMINI_CLI_TRUST_WORKSPACE=true
mkdir .gemini
echo '{"security": {"auth": {"selectedType": "gemini-api-key"}}, "privacy": {"usageStatisticsEnabled": false}}' \
    >.gemini/settings.json
gemini --model "$AGL_MODEL" --yolo --prompt "$AGL_PROMPT" </dev/null >&2
[ "$(cat answer.txt)" = "$ANSWER" ] && echo 1 || echo 0
