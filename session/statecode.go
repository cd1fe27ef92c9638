package session

import (
	"errors"
	"time"

	"github.com/artifactfs/artifactfs/object"
	"github.com/artifactfs/artifactfs/odb"
)

// Objects gives objects by their ids.
type Objects interface {
	Get(id object.ID, limit int64) (object.Type, []byte, error)
}

// EncodeState gives the commit of a State and the objects that it is made of, the commit among them. Parents are the owned
// commits that it names.
func EncodeState(f object.Format, s State, parents []object.ID, at time.Time) (object.ID, []odb.Outgoing, error) {
	return object.ID{}, nil, errors.ErrUnsupported
}

// ReadState reads the State whose commit is id.
func ReadState(src Objects, f object.Format, id object.ID) (State, error) {
	return State{}, errors.ErrUnsupported
}
