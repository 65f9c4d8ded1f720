# Codex as an agent: npm install --global @openai/codex@0.169.0. It ignores OPENAI_BASE_URL, so this writes its config.
set -e
cd "$(dirname "$AGL_TASK_FILE")"
export CODEX_HOME="$PWD/.codex"
mkdir "$CODEX_HOME"
cat >"$CODEX_HOME/config.toml" <<END
model = "$AGL_MODEL"
model_provider = "agl"

[model_providers.agl]
name = "agl"
base_url = "$OPENAI_BASE_URL"
env_key = "OPENAI_API_KEY"
wire_api = "responses"
END
codex exec --skip-git-repo-check --sandbox workspace-write "$AGL_PROMPT" </dev/null >&2
[ "$(cat answer.txt)" = "$ANSWER" ] && echo 1 || echo 0
