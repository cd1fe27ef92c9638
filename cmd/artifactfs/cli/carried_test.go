package cli

import (
	"testing"

	"github.com/artifactfs/artifactfs/control"
)

func TestCarriedText(t *testing.T) {
	many := &control.Carried{Files: 36012, Dirs: 3000, Bytes: 1 << 30}
	many.SetSecrets([]string{".env", ".npmrc", "a.key", "b.key"})
	one := &control.Carried{Files: 1, Bytes: 5}
	one.SetSecrets([]string{".env"})
	failed := &control.Carried{Failed: "no space left on device"}
	missing := control.NewReceipt([]control.LeftOut{{Path: "a.sock", Why: "type"}, {Path: "b.sock", Why: "type"},
		{Path: "moved", Why: "unread"}, {Path: "x/", Why: "place"}}, 4, nil)
	const left = "not carried: 2 no file or link (a.sock, b.sock), 1 moved and never read (moved), 1 without a place (x/)"
	for _, test := range []struct {
		c       *control.Carried
		missing *control.Receipt
		want    string
	}{
		{nil, nil, ""},
		{failed, nil, ""},
		{failed, missing, left + ": no space left on device"},
		{nil, missing, left},
		{one, nil, "carried: 1 ignored file (5 B, shared), among them 1 secret (.env)"},
		{many, missing, "carried: 36,012 ignored files (" + BytesOf(1<<30) +
			", shared), among them 4 secrets (.env, .npmrc, a.key, ...); " + left},
	} {
		if got := carriedText(test.c, test.missing); got != test.want {
			t.Errorf("got  %s\nwant %s", got, test.want)
		}
	}
}
