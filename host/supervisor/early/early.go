// Package early records signals that ask a daemon to exit while the executable of its supervisor is replaced. It
// imports only packages of the standard library, so that it is initialized before most packages of the program. Until
// then, which takes about a millisecond, such a signal kills the process.
package early

import (
	"os"
	"os/signal"
	"strings"
	"syscall"
)

// Variable is the name of the environment variable that is set for a supervisor that continues the work of another
// process. Its value begins with Replaced if that was the same process with another executable.
const (
	Variable = "ARTIFACTFS_HANDED"
	Replaced = "self:"
)

var asked = make(chan os.Signal, 1)

func init() {
	if strings.HasPrefix(os.Getenv(Variable), Replaced) {
		Watch()
	}
}

// Watch begins to record the signals that the parent process has not made this process ignore.
func Watch() {
	for _, s := range []os.Signal{syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP} {
		if !signal.Ignored(s) {
			signal.Notify(asked, s)
		}
	}
}

// Asked returns a channel that receives a signal that asks the daemon to exit, if this process has replaced its
// executable or has called Watch.
func Asked() <-chan os.Signal { return asked }
