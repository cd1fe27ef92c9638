package credential

import (
	"bytes"
	"context"
	"strings"
	"testing"

	"go.uber.org/zap"

	"github.com/artifactfs/artifactfs/git/gitsocket"
	"github.com/artifactfs/artifactfs/git/transport"
)

// fixed is a source of credentials that always returns the same answer, and records the calls.
type fixed struct {
	answer transport.Credential
	heard  []string
}

func (f *fixed) Credential(_ context.Context, q transport.Question) (transport.Credential, bool, error) {
	f.heard = append(f.heard, "get "+q.Protocol+"://"+q.Host+"/"+q.Path+" "+strings.Join(q.Challenges, ","))
	return f.answer, q.Host == "here", nil
}
func (f *fixed) Refused(_ context.Context, q transport.Question, secret string) {
	f.heard = append(f.heard, "refused "+q.Host+" "+secret)
}
func (f *fixed) Accepted(_ context.Context, q transport.Question, secret string) {
	f.heard = append(f.heard, "accepted "+q.Host+" "+secret)
}

func TestHelperSpeaksGitsProtocol(t *testing.T) {
	dir := t.TempDir()
	f := &fixed{}
	s, err := Serve(dir, f, 0, gitsocket.Options{}, zap.NewNop())
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	basic, bearer := transport.Credential{User: "u", Password: "p=1"}, transport.Credential{Scheme: "Bearer", Value: "t"}
	for _, c := range []struct {
		op, in, want, heard string
		answer              transport.Credential
	}{
		{"get", "protocol=https\nhost=here\npath=a/b.git\nwwwauth[]=Basic realm=\"x\"\nunknown=1\n",
			"username=u\npassword=p=1\n\n", `get https://here/a/b.git Basic realm="x"`, basic},
		{"get", "capability[]=authtype\nprotocol=https\nhost=here\nwwwauth[]=Bearer\n\n",
			"capability[]=authtype\nauthtype=Bearer\ncredential=t\n\n", "get https://here/ Bearer", bearer},
		{"get", "protocol=https\nhost=elsewhere\n\n", "", "get https://elsewhere/ ", basic},
		{"store", "protocol=https\nhost=here\nusername=u\npassword=p\n", "", "accepted here p", basic},
		{"erase", "protocol=https\nhost=here\nauthtype=Bearer\ncredential=t\n", "", "refused here t", basic},
		{"capability", "", "", "", basic},
	} {
		f.answer, f.heard = c.answer, nil
		var out bytes.Buffer
		if err := Ask(t.Context(), dir, c.op, strings.NewReader(c.in), &out); err != nil {
			t.Errorf("Ask(%s, %q): %v", c.op, c.in, err)
		}
		if got := strings.Join(f.heard, "; "); out.String() != c.want || got != c.heard {
			t.Errorf("%s %q: got %q and the source heard %q, want %q and %q", c.op, c.in, out.String(), got, c.want, c.heard)
		}
	}
	if err := Ask(t.Context(), t.TempDir(), "get", strings.NewReader("\n"), &bytes.Buffer{}); err == nil {
		t.Error("asking where nobody answers: got no error")
	}
}

func FuzzReadMessage(f *testing.F) {
	f.Add([]byte("op=get\ncapability[]=authtype\nprotocol=https\nhost=h\nwwwauth[]=Basic\nwwwauth[]=\n\n"))
	f.Add([]byte("password=a\r\nb"))
	f.Add([]byte("\n\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		m, _, err := readMessage(bytes.NewReader(data))
		if err != nil {
			return
		}
		again, whole, err := readMessage(bytes.NewReader(m.lines()))
		if err != nil || !whole || again.secret != m.secret || again.question.Host != m.question.Host {
			t.Errorf("%q read again: got %+v, %v, want %+v", data, again, err, m)
		}
	})
}
