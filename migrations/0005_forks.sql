-- Forks and earlier moments: which call a result answers, found from the call.
--
-- `open_call` knows which calls wait for a result now, in the session that they belong to. Whether one waited
-- at an earlier moment, or waits in a fork that shares it, is answered by looking for its result.

CREATE INDEX event_answers ON event (session, answers) WHERE answers IS NOT NULL;
