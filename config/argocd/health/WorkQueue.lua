-- Health of a WorkQueue. A suspended queue is Suspended: agents get nothing from it.
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
if has("Accepting", "False") then
  return verdict("Degraded", conditions.Accepting)
end
if has("DeadLettersKept", "False") then
  return verdict("Degraded", conditions.DeadLettersKept)
end
if not has("Ready", "True") then
  return verdict("Progressing", conditions.Ready)
end
if conditions.Ready.reason == "Suspended" then
  return verdict("Suspended", conditions.Ready)
end
if has("ObjectivesMet", "False") then
  return verdict("Healthy", conditions.ObjectivesMet)
end
return verdict("Healthy", conditions.Ready)
