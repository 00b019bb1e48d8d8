"""Views: who may see what, and why. The minimum valid slice for a reader and a purpose.

definition  what a view says: a frozen value, and its form as JSON
shipped     the views that every store has, and which role has which
defining    the views of a store, and the view of a role
compiling   from a definition to walks over indexes: see `store.probing`
explaining  why an event is in a slice or out of it
looking     what the rendering of a state may look up in a slice
slices      a session through a view: tail, read, state, explain

In one process a view is discipline, not a wall: who has the store has the keys. A server that answers for
others is where it is enforced.
"""
