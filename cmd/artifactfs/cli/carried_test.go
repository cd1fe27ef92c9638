package cli

import (
	"testing"

	"github.com/artifactfs/artifactfs/control"
)

func TestCarriedText(t *testing.T) {
	many := &control.Carried{Files: 36012, Dirs: 3000, Bytes: 1 << 30}
	many.SetSecrets([]string{".env", ".npmrc"})
	for _, path := range []string{"a.sock", "b.sock", "c.sock", "d.sock", "e.sock"} {
		many.Add(path, "socket")
	}
	one := &control.Carried{Files: 1, Bytes: 5}
	one.SetSecrets([]string{".env"})
	for _, test := range []struct {
		c    *control.Carried
		want string
	}{
		{&control.Carried{Failed: "no space left on device"},
			"the fork does not have the ignored files: no space left on device"},
		{one, "carried: 1 ignored file (5 B, shared), among them 1 secret that stays on this host (.env)"},
		{many, "carried: 36,012 ignored files (" + BytesOf(1<<30) + ", shared), among them 2 secrets that stay on this " +
			"host (.env, .npmrc); not carried: a.sock: socket, b.sock: socket, c.sock: socket and 2 more"},
	} {
		if got := carriedText(test.c); got != test.want {
			t.Errorf("got  %s\nwant %s", got, test.want)
		}
	}
}
