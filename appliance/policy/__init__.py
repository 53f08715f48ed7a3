"""Every decision of the appliance: values in, values out with their reason. `ls` reads as its specification."""
