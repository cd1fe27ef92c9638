package worktree

// Changes is what may differ from what was known at a token.
type Changes struct {
	Token string   // from here on the next question is asked
	All   bool     // everything may differ: the token is of another history, or too old
	Paths []string // relative to the root; below one that ends in a slash everything may differ
	// Open are files among them that programs may still be writing to in the kernel's cache.
	Open []Node
}

// Changes tells what may differ since a token.
func (t *Tree) Changes(token string) (Changes, error) {
	if !t.gate.enter() {
		return Changes{}, ErrClosed
	}
	defer t.gate.leave()
	return Changes{All: true}, nil
}

// StartToken is the token of the beginning of the work, when nothing differed from the base tree.
func (t *Tree) StartToken() string { return "" }

// Written notes that a program begins to write to a file in the kernel's cache.
func (t *Tree) Written(n Node) {}

// Refreshed notes that the kernel has forgotten the attributes of nodes that Changes called open.
func (t *Tree) Refreshed(nodes []Node) {}
