package fetch

import (
	"slices"
	"sync"

	"go.uber.org/zap"
)

// notices are messages about reduced service, such as a remote without filters. The status of a mount shows them to the user.
type notices struct {
	log *zap.Logger

	mu   sync.Mutex
	list []string // messages, without duplicates
}

// add records a message and logs it, unless the same message was recorded before.
func (n *notices) add(text string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if slices.Contains(n.list, text) {
		return
	}
	n.list = append(n.list, text)
	n.log.Warn(text)
}

// all returns all messages in the order in which they were recorded.
func (n *notices) all() []string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.Clone(n.list)
}
