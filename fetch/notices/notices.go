// Package notices collects messages about limits of a mount, such as a remote without filters.
package notices

import (
	"slices"
	"sync"

	"go.uber.org/zap"
)

// List contains messages about limits of a mount, such as a remote without filters. The status of the mount shows them
// to the user.
type List struct {
	Log *zap.Logger // receives each message once

	mu   sync.Mutex
	list []string // messages, without duplicates
}

// Add records a message and logs it, unless the same message was recorded before. It does nothing if text is "".
func (n *List) Add(text string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if text == "" || slices.Contains(n.list, text) {
		return
	}
	n.list = append(n.list, text)
	n.Log.Warn(text)
}

// AddError records the text of err. It does nothing if err is nil.
func (n *List) AddError(err error) {
	if err != nil {
		n.Add(err.Error())
	}
}

// All returns all messages in the order in which they were recorded.
func (n *List) All() []string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.Clone(n.list)
}
