-- Effects are listed by what became of them, those that are done too: a session may have had very many.

DROP INDEX effect_open;
CREATE INDEX effect_state ON effect (session, state);
