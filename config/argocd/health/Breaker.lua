-- Health of a Breaker. It is Degraded while a circuit is open, because something keeps failing. Put it into the same wave as its
-- pools: a sync stops after a wave with a Degraded object, and the next wave may hold the repair.
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
if has("Tripped", "True") then
  local health = {CircuitHalfOpen = "Progressing", ForcedOpen = "Suspended"}
  return verdict(health[conditions.Tripped.reason] or "Degraded", conditions.Tripped)
end
if not has("Ready", "True") then
  return verdict("Progressing", conditions.Ready)
end
return verdict("Healthy", conditions.Ready)
