-- Health of a Toolset. It is Degraded while its definitions are wrong, also if the last valid ones are served.
local status = obj.status or {}
if status.observedGeneration ~= obj.metadata.generation then
  return {status = "Progressing", message = "the controller has not observed this generation yet"}
end
local conditions = {}
for _, condition in ipairs(status.conditions or {}) do
  if condition.type ~= nil then
    conditions[condition.type] = condition
  end
end
local function has(type, value)
  return conditions[type] ~= nil and conditions[type].status == value
end
local function verdict(health, condition)
  local reason = condition.reason or condition.type
  if condition.message == nil or condition.message == "" then
    return {status = health, message = reason}
  end
  return {status = health, message = reason .. ": " .. condition.message}
end
if conditions.Ready == nil then
  return {status = "Unknown", message = "the status has no condition Ready, so another version of Spillway wrote it"}
end
local ready = conditions.Ready
local valid = conditions.DefinitionsValid
if has("DefinitionsValid", "False") then
  -- The ConfigMap may come with a later file.
  if valid.reason == "ConfigMapNotFound" and ready.reason == "DefinitionsInvalid" then
    return verdict("Progressing", valid)
  end
  return verdict("Degraded", valid)
end
if has("Ready", "True") then
  return verdict("Healthy", ready)
end
if ready.reason == "Starting" then
  return verdict("Progressing", ready)
end
return verdict("Degraded", ready)
