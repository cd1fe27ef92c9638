package gittest

import (
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/artifactfs/artifactfs/git/object"
)

func TestNoObjectInfo(t *testing.T) {
	sv := startFormat(t, object.SHA1, ServerOptions{Config: []string{"transfer.advertiseObjectInfo=true"}})
	caps := func() string {
		r, err := http.NewRequest(http.MethodGet, sv.url()+"/info/refs?service=git-upload-pack", nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Git-Protocol", "version=2")
		resp, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		b, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	if !strings.Contains(caps(), "object-info") {
		t.Fatal("object-info is not offered in the first place")
	}
	sv.Inject(Fault{Kind: NoObjectInfo})
	if got := caps(); strings.Contains(got, "object-info") || !strings.Contains(got, "object-format") {
		t.Errorf("capabilities are %q", got)
	}
}
