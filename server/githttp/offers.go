package githttp

import (
	"context"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/artifactfs/artifactfs/git/gitcmd"
)

// offers caches two messages of git: the first message of protocol version 2, in which git lists its capabilities, and
// the capabilities for pushes. They depend only on the git program and the object format of the repository, so the
// first request of a fetch needs neither a process nor a replica.
//
// Locks: mu is held while git runs.
type offers struct {
	mu      sync.Mutex
	program program
	// messages for fetches by object format, and capabilities for pushes by receivePack and object format
	texts map[string][]byte
}

// program identifies the version of a program.
type program struct {
	path     string
	size     int64
	modified time.Time
}

// currentProgram returns the identity of the installed git program, which can be replaced by another version at any
// time.
func currentProgram() (program, error) {
	path, err := gitcmd.LookPath()
	if err != nil {
		return program{}, err
	}
	info, err := os.Stat(path)
	if err != nil {
		return program{}, err
	}
	return program{path, info.Size(), info.ModTime()}, nil
}

// get returns the text with the key format. If the text is not in the cache, get calls the function ask, which gets it
// from git.
func (o *offers) get(ctx context.Context, format string,
	ask func(ctx context.Context) ([]byte, error)) ([]byte, error) {
	now, err := currentProgram()
	if err != nil {
		return nil, fmt.Errorf("find git: %w", err)
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.program != now {
		o.program, o.texts = now, map[string][]byte{}
	}
	if text := o.texts[format]; text != nil {
		return text, nil
	}
	text, err := ask(ctx)
	if err != nil {
		return nil, err
	}
	o.texts[format] = text
	return text, nil
}
