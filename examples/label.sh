#!/bin/sh
# Any program can be a job. It gets the payload as JSON on standard input. Lines such as {"progress": 0.5} say how far it is,
# standard error becomes the run's log, and what else it writes is the result.
set -eu

order=$(sed 's/[^0-9]//g')
echo "printing the label of order $order, attempt $WINDLASS_ATTEMPT" >&2

for quarter in 0.25 0.5 0.75 1; do
    sleep 0.4
    echo "{\"progress\": $quarter, \"message\": \"printing\"}"
done

echo "{\"label\": \"order-$order.pdf\"}"
