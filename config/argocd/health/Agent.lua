-- Health of an Agent. Agents belong to their pool, so Argo CD shows them in its tree and does not add them to the health of the
-- Application, unless an Agent is itself in Git.
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
-- Reasons of Ready in a start that goes well. With another reason the start does not go on by itself.
local starting = {
  PodCreating = true,
  PodPending = true,
  PodNotReady = true,
  ProcessNotReady = true,
  NotRegistered = true,
  ForeignPod = true,
}
if conditions.Ready == nil then
  return {status = "Unknown", message = "the status has no condition Ready, so another version of Spillway wrote it"}
end
local ready = conditions.Ready
local phase = status.phase
if phase == "Spawning" or phase == "Running" then
  if starting[ready.reason] then
    return verdict("Progressing", ready)
  end
  return verdict("Degraded", ready)
end
if phase == "Goodbye" then
  return verdict("Progressing", ready)
end
if phase == "Stale" or phase == "ForceStopped" or ready.reason == "PodFailed" then
  return verdict("Degraded", ready)
end
if phase == "Paused" then
  return verdict("Suspended", conditions.Paused or ready)
end
if phase == "Hibernated" or phase == "Stopped" then
  return verdict("Healthy", ready)
end
if conditions.Heartbeating ~= nil and conditions.Heartbeating.status ~= "True" then
  if conditions.Heartbeating.status == "Unknown" then
    return verdict("Unknown", conditions.Heartbeating)
  end
  return verdict("Degraded", conditions.Heartbeating)
end
if has("Ready", "True") then
  return verdict("Healthy", ready)
end
return {status = "Unknown", message = "the phase " .. tostring(phase) .. " is not known: another version of Spillway wrote it"}
