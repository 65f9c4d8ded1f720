#!/bin/sh
# An agent that is a shell script. Its config, curl_agent.yaml, lets it have two fields of the task in variables:
# MESSAGES, which is JSON, and ANSWER.
set -eu

answer=$(curl --silent --show-error --fail-with-body "$OPENAI_BASE_URL/chat/completions" \
    --header "Authorization: Bearer $OPENAI_API_KEY" \
    --header "Content-Type: application/json" \
    --data "{\"model\": \"$AGL_MODEL\", \"messages\": $MESSAGES}")

# What the model says, not the rest of the JSON, where an id or a count may have the answer, too.
content=$(printf '%s\n' "$answer" | sed -nE 's/.*"content": *"(([^"\\]|\\.)*)".*/\1/p')

case $content in
    *"$ANSWER"*) reward=1 ;;
    *) reward=0 ;;
esac

curl --silent --show-error --fail-with-body "$AGL_REPORT_URL" \
    --header "Authorization: Bearer $AGL_REPORT_KEY" \
    --data "{\"reward\": $reward}"
