-- Health of a Budget. A spent budget is Healthy: it does what it is for, and the pools that wait for it are Degraded. Otherwise a
-- sync with waves would stop at the budget, before it applies the pools.
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
if has("Stalled", "True") then
  return verdict("Degraded", conditions.Stalled)
end
if conditions.Ready == nil then
  return {status = "Unknown", message = "the status has no condition Ready, so another version of Spillway wrote it"}
end
local quota = conditions.QuotaApplied
if has("QuotaApplied", "False") and quota.reason ~= "NotEnforced" then
  if quota.reason == "Applying" then
    return verdict("Progressing", quota)
  end
  return verdict("Degraded", quota)
end
if not has("Ready", "True") then
  return verdict("Progressing", conditions.Ready)
end
if has("Blocked", "True") then
  return verdict("Healthy", conditions.Blocked)
end
if has("NearLimit", "True") then
  return verdict("Healthy", conditions.NearLimit)
end
return verdict("Healthy", conditions.Ready)
