//! Bodies that real programs sent. This file contains no invented body.

use super::*;

/// The bodies are shortened.
#[test]
fn what_real_programs_send_passes() {
    let codex = json!({"model": "gpt-5.5", "instructions": "You are Codex", "input": [
        {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "rules"}]},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "task"}]},
        {"type": "reasoning", "summary": [], "content": null, "encrypted_content": "gAAAA"},
        {"type": "reasoning", "id": "rs_1", "summary": []},
        {"type": "function_call", "name": "shell", "arguments": "{\"command\":[\"ls\"]}", "call_id": "c1"},
        {"type": "function_call_output", "call_id": "c1", "output": "a\nb"},
        {"type": "custom_tool_call_output", "call_id": "c2", "output": [{"type": "input_text", "text": "x"}]},
        {"type": "local_shell_call", "status": "completed", "action": {"type": "exec"}},
        {"type": "web_search_call", "status": "completed", "action": {"type": "search", "query": "q"}}],
        "tools": [{"type": "function", "name": "shell", "strict": false, "parameters": {"type": "object"}},
            {"type": "custom", "name": "apply_patch", "format": {"type": "grammar"}}, {"type": "local_shell"},
            {"type": "namespace", "name": "mcp", "tools": [{"type": "function", "name": "f"}]},
            {"type": "tool_search", "execution": "client", "description": "d", "parameters": {}},
            {"type": "web_search", "external_web_access": true}],
        "tool_choice": "auto", "parallel_tool_calls": false, "reasoning": {"effort": "high", "summary": "auto"}, "store": false,
        "stream": true, "include": ["reasoning.encrypted_content"], "prompt_cache_key": "k", "text": {"verbosity": "low"},
        "client_metadata": {"x": "y"}});
    let codex = good(RESPONSES, &codex);
    let body = sent(&codex, 16_000);
    assert_eq!((body["max_output_tokens"].as_i64(), body["tools"].as_array().map(Vec::len), codex.stream()), (Some(16_000), Some(5), true));

    // Newer models get their tools in the input.
    let lite = json!({"model": "gpt-6-sol", "store": false, "stream": true, "reasoning": {"context": "all_turns"}, "input": [
        {"type": "additional_tools", "id": "at_1", "role": "developer", "tools": [{"type": "namespace", "name": "functions",
            "tools": [{"type": "custom", "name": "exec"}]}, {"type": "web_search", "external_web_access": true}]},
        {"type": "message", "id": "msg_1", "role": "user", "content": [{"type": "input_text", "text": "task"}]},
        {"type": "custom_tool_call", "id": "c", "call_id": "c1", "name": "exec", "input": "ls"},
        {"type": "custom_tool_call_output", "call_id": "c1", "output": "a"}],
        "client_metadata": {"x-codex-installation-id": "i"}});
    let body = sent(&good(RESPONSES, &lite), 16_000);
    assert_eq!(body["input"][0]["tools"].as_array().map(Vec::len), Some(1), "{body}");

    let claude = json!({"model": "claude-opus-4-8", "max_tokens": 64_000, "stream": true, "temperature": 1,
        "system": [{"type": "text", "text": "You are", "cache_control": {"type": "ephemeral"}}],
        "messages": [{"role": "user", "content": [{"type": "text", "text": "task", "cache_control": {"type": "ephemeral"}}]},
            {"role": "assistant", "content": [{"type": "thinking", "thinking": "", "signature": "s"},
                {"type": "tool_use", "id": "t", "name": "Bash", "input": {"command": "ls"}}]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": "a", "is_error": false},
                {"type": "tool_result", "tool_use_id": "u", "content": [{"type": "tool_reference", "tool_name": "x"}]}]}],
        "tools": [{"name": "Bash", "description": "d", "input_schema": {"type": "object"}, "defer_loading": true}],
        "metadata": {"user_id": "u"}, "thinking": {"type": "adaptive"}, "output_config": {"effort": "high"},
        "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]}});
    good(MESSAGES, &claude);

    let gemini_cli = json!({"contents": [{"role": "user", "parts": [{"text": "task"}]},
            {"role": "model", "parts": [{"functionCall": {"name": "ls", "args": {"path": "."}}, "thoughtSignature": "AAAA"}]},
            {"role": "user", "parts": [{"functionResponse": {"name": "ls", "response": {"output": "a"}}}]}],
        "systemInstruction": {"role": "user", "parts": [{"text": "You are"}]},
        "tools": [{"functionDeclarations": [{"name": "ls", "parametersJsonSchema": {"type": "object"}}]}],
        "generationConfig": {"temperature": 1, "topP": 0.95, "topK": 64, "thinkingConfig": {"includeThoughts": true, "thinkingBudget": 8192}}});
    assert_eq!(sent(&good(GEMINI, &gemini_cli), 9)["generationConfig"]["maxOutputTokens"], 9);

    let swe = json!({"model": "m", "messages": [{"role": "system", "content": "s"}, {"role": "assistant", "content": null,
        "tool_calls": [{"id": "c", "type": "function", "function": {"name": "bash", "arguments": "{}"}}]},
        {"role": "tool", "tool_call_id": "c", "content": "out"}], "tools": [{"type": "function", "function": {"name": "bash"}}]});
    assert_eq!(sent(&good(CHAT, &swe), 9)["max_completion_tokens"], 9);
    let pi = json!({"model": "m", "stream": true, "stream_options": {"include_usage": true}, "store": false, "max_completion_tokens": 32000,
        "messages": [{"role": "user", "content": [{"type": "text", "text": "x"}]}], "reasoning_effort": "medium"});
    assert!(!good(CHAT, &pi).strips_usage_chunk());
}
