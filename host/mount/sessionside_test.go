package mount

import (
	"reflect"
	"testing"

	"github.com/artifactfs/artifactfs/control"
)

func TestRecordedOptionsHaveNoSecrets(t *testing.T) {
	o := control.SessionOptions{Remote: "https://u:sesame@127.0.0.1/s", Exclude: []string{"x"}, TakeOver: true}
	want := control.SessionOptions{Remote: "https://127.0.0.1/s", Exclude: []string{"x"}}
	if got := shown(o); !reflect.DeepEqual(got, want) {
		t.Errorf("on record: got %+v, want %+v", got, want)
	}
}
