-- Health of an AgentPool. A pool at zero is Healthy. A Blocked pool is Degraded, and not Suspended: a sync with waves waits for
-- a Suspended object, and would hold up the very commit that raises the budget.
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
-- While a new generation is applied, these obstacles can go away by themselves: the object of a later file, a quota, a node.
local passing = {
  MissingReference = true,
  WallsPending = true,
  QuotaExceeded = true,
  NamespaceTerminating = true,
  NodeProfileMissing = true,
  Unschedulable = true,
}

if has("Stalled", "True") then
  return verdict("Degraded", conditions.Stalled)
end
if conditions.Ready == nil then
  return {status = "Unknown", message = "the status has no condition Ready, so another version of Spillway wrote it"}
end
if has("Blocked", "True") then
  if has("Reconciling", "True") and passing[conditions.Blocked.reason] then
    return verdict("Progressing", conditions.Blocked)
  end
  return verdict("Degraded", conditions.Blocked)
end
if not has("Ready", "True") then
  return verdict("Progressing", conditions.Ready)
end
if has("ScaledToZero", "True") then
  return verdict("Healthy", conditions.ScaledToZero)
end
return verdict("Healthy", conditions.Ready)
